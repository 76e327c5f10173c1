"""The lock server inside this process.

To read it, in this order: `server` (every step), `entry` (what it keeps of one name), `shares` (several holders of one
name), `records`.
"""
