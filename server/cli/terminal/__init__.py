"""What a person at a terminal reads and types: lines, a live list of steps, and questions."""
