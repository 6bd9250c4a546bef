"""Jobs: what starts a database (or fio), gives it work, proves the work was done, and ends it. Standard
library only.
"""
