"""Tools of the checkout: generated files, the runner of the tests, the check of a change."""
