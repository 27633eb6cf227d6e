"""What a person at a terminal sees and types: lines, a live list of steps, questions."""
