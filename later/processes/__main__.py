"""`python -m later.processes worker 2/4 --channel 7`: a supervisor starts this, and nobody else."""

from later.processes.inside import main

if __name__ == "__main__":
    main()
