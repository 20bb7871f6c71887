"""`fedstale advise`: from who comes, and how often, to a rule and its settings, in plain words with numbers.

evidence, recorded_runs    what is known: a trace, the p_i, an experiment or a run's folder, in one form
measures, rhythm           the numbers: bias, noise, staleness, rounds, memory, correlation, who stands out
rules                      which rule follows from them, and why: all of it in one table
trying                     the shortlist, simulated on the user's own experiment and ranked
telling                    the same for people
command                    `fedstale advise`
"""
