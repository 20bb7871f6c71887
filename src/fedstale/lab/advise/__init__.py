"""From a participation to a recommended algorithm and its settings, with the numbers behind it.

evidence   what is known: a file, probabilities, an experiment or a run's folder, in one form
measures   the numbers: bias, noise, staleness, rounds, memory, correlation
rules      which rule follows from them, and why: all of it in one table
trial      a shortlist on the user's own experiment, ranked
text       the recommendation as text
"""
