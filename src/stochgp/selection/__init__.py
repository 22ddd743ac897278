"""What a fit decides, a question a file: what is compared, by which rows, and from how many on. The rule of all is `choosing.prefer`."""
