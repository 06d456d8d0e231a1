"""What all tests share: each begins with the same random numbers, in whatever order and company it runs."""

import signal

import torch


def pytest_configure() -> None:
    """In the background SIGINT is ignored, by every process that is started from there, too; tests of signals need it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    torch.manual_seed(0)
