#!/bin/bash
accelerate launch --config_file launch.yaml train.py
