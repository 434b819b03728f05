"""Objectives that replaced token detection is compared with."""
