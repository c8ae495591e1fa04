"""What a graph's values mean: symbolic sizes, exact constants, and one key for every spelling of a value."""
