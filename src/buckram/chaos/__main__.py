from runpy import run_module

run_module("chaos", run_name="__main__", alter_sys=True)
