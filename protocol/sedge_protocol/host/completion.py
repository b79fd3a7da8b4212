"""Generates completion scripts for bash, zsh and fish that complete subcommands, choices and options.

They are generated from a table of the words that may follow each chain of commands. Where the table has no
words, the shell completes file names.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Words: TypeAlias = Mapping[tuple[str, ...], Sequence[str]]

SHELLS = ("bash", "zsh", "fish")
# ``at`` is the chain of commands before the cursor.
_BASH = """\
_{name}() {{
    local at="" word words options
    local cursor="${{COMP_WORDS[COMP_CWORD]}}"
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$at $word" in
            {chains}) at="$at $word" ;;
        esac
    done
    case "$at" in
{cases}
    esac
    if [[ $cursor == -* ]]; then words=$options; fi
    COMPREPLY=($(compgen -W "$words" -- "$cursor"))
}}
complete -o default -F _{name} {prog}
"""
_ZSH = """\
#compdef {prog}
_{name}() {{
    local at="" word
    local -a here options
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$at $word" in
            {chains}) at="$at $word" ;;
        esac
    done
    case "$at" in
{cases}
    esac
    if [[ $words[CURRENT] == -* ]]; then compadd -- $options; else compadd -- $here; _files; fi
}}
compdef _{name} {prog}
"""
_FISH = """\
function __{name}
    set -l at ""
    for word in (commandline -opc)[2..]
        if contains -- "$at $word" {chains}
            set at "$at $word"
        end
    end
    switch "$at"
{cases}
    end
end
complete -c {prog} -a "(__{name})"
"""
_FORMS = {
    "bash": (_BASH, "        {chain}) words='{words}' options='{options}' ;;", " | "),
    "zsh": (_ZSH, "        ({chain}) here=({words}) options=({options}) ;;", " | "),
    "fish": (_FISH, "        case {chain}\n            printf '%s\\n' {words} {options}", " "),
}


def script(shell: str, prog: str, words: Words) -> str:
    """Return the completion script of the command ``prog`` for a shell."""
    form, case, between = _FORMS[shell]
    chains = {path: shlex.quote("".join(f" {word}" for word in path)) for path in words}
    cases = [
        case.format(
            chain=chains[path],
            words=" ".join(word for word in own if not word.startswith("-")),
            options=" ".join(word for word in own if word.startswith("-")),
        )
        for path, own in words.items()
    ]
    return form.format(
        name=re.sub(r"\W", "_", prog),
        prog=prog,
        chains=between.join(chain for path, chain in chains.items() if path) or "''",
        cases="\n".join(cases),
    )
