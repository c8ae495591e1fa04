"""Which linears must stay in 16 bits so that a quantised graph keeps within a budget, at the least cost in time."""
