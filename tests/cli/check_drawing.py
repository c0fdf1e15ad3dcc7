#!/usr/bin/env python3
"""The drawing in forward.hpp is the one `fa3 trace --text` prints. usage: check_drawing.py FA3 FORWARD_HPP"""
import pathlib
import subprocess
import sys

drawing = subprocess.run([sys.argv[1], "trace", "--text"], check=True, capture_output=True, text=True).stdout
if not drawing.strip():
    sys.exit("fa3 trace --text printed nothing")
if drawing not in pathlib.Path(sys.argv[2]).read_text():
    sys.exit(f"{sys.argv[2]} does not hold this drawing; put it there:\n{drawing}")
print("the drawing is true")
