"""Apache's Java software for tests and benchmarks: found with Maven, compiled with our programs, run as processes.

pom.xml names the releases. No part of the package that is installed.
"""
