"""Handlers: functions of an application that do tasks, and the dispatch of a task to its handler."""
