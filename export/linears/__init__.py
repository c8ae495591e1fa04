"""The linears of a graph: products of an activation with one constant matrix, found, and joined where they read one value."""
