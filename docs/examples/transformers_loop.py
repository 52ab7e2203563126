"""A loop of Ray Train's with Transformers' Trainer, as its documentation has them: a small, random language model.

`StepCallback` is the only line for a study, and may go. See docs/ray-loops.md.
"""

import tempfile
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from scalestudy.transformers import StepCallback

TRAIN, TEST, LENGTH, VOCABULARY = 512, 128, 16, 29


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Rows of integers: each is 3 times the one before it plus 5, modulo 29, and one in ten is drawn instead."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(VOCABULARY, (count, LENGTH), generator=generator)
        is_drawn = torch.rand(count, LENGTH, generator=generator) < 0.1
        self.rows = drawn.clone()
        for place in range(1, LENGTH):
            follows = (3 * self.rows[:, place - 1] + 5) % VOCABULARY
            self.rows[:, place] = torch.where(is_drawn[:, place], drawn[:, place], follows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def train_loop_per_worker(config: dict[str, Any]) -> None:
    set_seed(config["seed"])
    shape = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=config["hidden"],
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    on_cpu = ray.train.torch.get_device().type == "cpu"
    checkpoint = ray.train.get_checkpoint()
    # One folder a rank: each of them reports its own files, which Ray Train puts into one checkpoint
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=config["epochs"],
            per_device_train_batch_size=config["batch_size_per_worker"],
            learning_rate=config["learning_rate"],
            lr_scheduler_type="constant",
            seed=config["seed"],
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            use_cpu=on_cpu,  # without it Trainer takes CPU workers for single ones, each with the whole data
            dataloader_pin_memory=not on_cpu,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=GPT2LMHeadModel(shape),
            args=arguments,
            train_dataset=Sequences(TRAIN, seed=1),
            eval_dataset=Sequences(TEST, seed=2),
            callbacks=[StepCallback(), RayTrainReportCallback()],
        )
        trainer = prepare_trainer(trainer)
        if checkpoint is None:
            trainer.train()
        else:
            with checkpoint.as_directory() as saved:
                trainer.train(resume_from_checkpoint=str(Path(saved, RayTrainReportCallback.CHECKPOINT_NAME)))
