"""Costs of training.

cost, macs                      multiply-adds, parameters and speed of a Run's network
emissions, intensity, workload  energy and CO2e of an attempt: codecarbon, the grid by the hour, and other work on the machine
"""
