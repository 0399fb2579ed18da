"""Asking before something is lost: `--yes`, a person at a terminal, or a refusal. The option itself: options.py."""

from __future__ import annotations

import sys

import click

from buckram.cli.shared.exits import Exit
from buckram.errors import InvalidArgument


class Declined(click.ClickException):
    """A person answered no. The message names what was not done."""

    exit_code = Exit.FAILED


def confirm(question: str, yes: bool, refusal: str) -> None:
    """Ask where a person sits at a terminal; for what loses nothing, so that scripts need no `--yes`.

    Declined with `refusal`, which says what did not happen, when the answer is no.
    """
    if not yes and sys.stdin.isatty() and not click.confirm(question, err=True):
        raise Declined(refusal)


def confirm_loss(question: str, yes: bool, refusal: str) -> None:
    """Ask like `confirm`, for actions that cannot be undone: without a terminal and without `--yes` they are
    refused."""
    if not yes and not sys.stdin.isatty():
        raise InvalidArgument(f"{refusal}: there is no terminal to ask at; add --yes if that is what you want")
    confirm(question, yes, refusal)
