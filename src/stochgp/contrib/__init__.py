"""Optional adapters to other packages. Import each of them by its full name."""
