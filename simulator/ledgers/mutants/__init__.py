"""Planted bugs: known defects of such systems, put into production classes for the time of a life.

They test the simulator: it is not good enough if no invariant catches one of them within its budget of seeds.
"""
