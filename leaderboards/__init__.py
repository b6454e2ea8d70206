"""Published tables (`papers/*.csv`) and this project's own results.

Columns of the tables: source, dataset, setting, method, metric, value, spread, n_seeds, all as
printed (accuracies in percent). `spread` is the standard deviation over seeds in the Orchestra
tables and the standard error in the mutual-information tables; empty where none is printed.
"""
