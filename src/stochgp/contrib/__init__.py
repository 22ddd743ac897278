"""Optional adapters to other packages. Import each adapter by its full name."""
