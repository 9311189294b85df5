"""Tiny random models of transformers, saved as folders."""

import torch
import transformers

from tests.tasks.audits.conftest import train_bpe

SPECIAL = {"mask_token": "<mask>", "cls_token": "<cls>", "sep_token": "<sep>"}

BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
}
LLAMA = BERT | {"num_key_value_heads": 2, "head_dim": 8}
XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 128, "pad_index": 1}
XLNET = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}
PROPHETNET = {
    "hidden_size": 32,
    "num_decoder_layers": 2,
    "num_decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "num_encoder_layers": 1,
    "max_position_embeddings": 128,
}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
MIXTRAL = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA3 = LLAMA | {"layer_types": ["sliding_attention", "full_attention"]}
FUNNEL = {
    "block_sizes": [1, 1],
    "num_decoder_layers": 1,
    "d_model": 32,
    "n_head": 4,
    "d_head": 8,
    "d_inner": 64,
}


def save_model(folder, name, deviation=None, tokenizer_size=400, **values):
    """Save a random model as transformers does, with a given standard deviation of its weights."""
    tokenizer = train_bpe(
        folder / "tokenizer.json", vocab=tokenizer_size, special=[*SPECIAL.values()]
    )
    fast_tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|pad|>",
        **SPECIAL,
    )
    fast_tokenizer.save_pretrained(folder)
    model_class = getattr(transformers, name)
    torch.manual_seed(4)
    model = model_class(model_class.config_class(vocab_size=len(fast_tokenizer), **values))
    with torch.no_grad():
        for parameter in model.parameters():
            if deviation is not None and parameter.ndim > 1:
                parameter.normal_(0, 1).mul_(deviation)
    model.save_pretrained(folder)
    return folder
