"""What `deir` says without a command."""

USAGE = """deir: train agents that explore.

  deir train                      train DEIR on DoorKey-8x8 (--help: common options, --help-all: every option)
  deir train --resume RUN         go on from the last checkpoint
  deir evaluate RUN               episodes of a trained agent, with --video FILE.mp4 a film of them
  deir list WHAT                  what there is: envs, methods, presets, loggers, zoo
  deir sweep FILE.yaml            tasks x methods x seeds, on this machine or on a Ray cluster
  deir tune FILE.yaml             search for good values of any option
  deir report RUNS... --out DIR   curves and statistics of many runs: a page, figures, tables
  deir replay RUN...              a page to watch episodes on, and why each step was found novel
  deir watch RUNS...              the report and the newest episodes on a local page, while runs go on
  deir probe                      what the embeddings of three models know about the state (Figure 7)
  deir distances                  how far apart observations of an episode are, through training (Figure A1)
  deir bench                      speed, memory and efficiency on this machine
"""
