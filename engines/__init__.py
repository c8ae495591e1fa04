"""Bundle -> engine -> session."""
