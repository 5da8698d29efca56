# `make demo` compiles a public model for Hopper; `make test` runs every check. Neither needs a GPU.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
MODEL := $(VENV)/demo/rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx

.PHONY: demo test lint clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

# The wheel is unpacked, not installed: only its model files are wanted.
$(MODEL): | $(BIN)/python
	$(BIN)/python -m pip download --quiet --no-deps --dest $(VENV)/demo rapidocr-onnxruntime==1.4.4
	$(BIN)/python -m zipfile -e $(VENV)/demo/rapidocr_onnxruntime-1.4.4-*.whl $(VENV)/demo

demo: $(VENV)/installed $(MODEL)
	$(BIN)/vibegemm compile $(MODEL) --shape x:4,3,48,320 --arch sm_90 -o $(VENV)/demo/ppocr_rec.so

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV)
