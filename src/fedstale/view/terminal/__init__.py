"""What is printed: tables, progress, results of commands and of comparisons made in Python."""
