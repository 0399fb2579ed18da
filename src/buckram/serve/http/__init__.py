"""The HTTP stack of all servers here that programs use: gateways and servers of databases.

Starlette routes on uvicorn's connections, with limits that uvicorn does not have. A server is a Starlette application
made by `application.py:application` and served by `server.py:HttpServer`. A bookie has no part of it: its few pages
for operators are `bookie/pages/status_pages.py`, and an import contract keeps it so. Needs the extra `serve`.
"""
