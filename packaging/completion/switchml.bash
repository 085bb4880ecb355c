# bash completion of switchml and switchmld                                   -*- shell-script -*-
# SPDX-License-Identifier: Apache-2.0
# What there is to complete is asked of the commands themselves (--help), so that it is never out of date.

_switchml_commands() {
    "$1" --help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p'
}

_switchml_options() {
    "$@" --help 2>/dev/null | grep -o -- '--[a-z][a-z0-9-]*=\{0,1\}' | sort -u
}

_switchml() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=() command=("${COMP_WORDS[@]:1:1}")
    [[ ${COMP_WORDS[1]} == bench && ${COMP_WORDS[2]} == @(training|numerics) ]] && command+=("${COMP_WORDS[2]}")
    COMPREPLY=()
    # bash cuts words at '=': "--key-file = /et" is three of them.
    if [[ $word == "=" ]]; then
        word=
    elif [[ $before == "=" ]]; then
        before=${COMP_WORDS[COMP_CWORD-2]}
    elif [[ $before != --*-file && $before != --*-dir && $before != --config ]]; then
        before=
    fi
    case $before in
        --*-file|--*-dir|--pcap|--config)
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            return ;;
        --log-level) words=(error warning info debug) ;;
        --poll) words=(auto busy block) ;;
        --type) words=(float32 float16 bfloat16 float64 int32 int64) ;;
        --float-bits) words=(16 32) ;;
        --float64-bits) words=(64 96) ;;
        --op) words=(sum avg) ;;
        --shared-memory) words=(yes no) ;;
        --gpu) words=(p100 v100 a100 h100 a10 l4 rtx4090) ;;
        --aggregator) words=(network embedded) ;;
        --model) mapfile -t words < <("${COMP_WORDS[0]}" bench training --list 2>/dev/null | grep -o '^[a-z][a-z0-9_]*') ;;
    esac
    if ((${#words[@]} == 0)); then
        if [[ ${COMP_WORDS[0]##*/} == switchmld ]]; then
            mapfile -t words < <(_switchml_options "${COMP_WORDS[0]}")
        elif ((COMP_CWORD == 1)); then
            mapfile -t words < <(_switchml_commands "${COMP_WORDS[0]}"; printf '%s\n' --help --version)
        else
            mapfile -t words < <(_switchml_options "${COMP_WORDS[0]}" "${command[@]}")
            [[ $COMP_CWORD == 2 && ${COMP_WORDS[1]} == bench && $word != -* ]] && words=(training numerics)
        fi
        # Without an option begun, names of files come after all (readline's default).
        [[ $word == -* || $COMP_CWORD == 1 || ${words[*]} == "training numerics" ]] || return
    fi
    mapfile -t COMPREPLY < <(compgen -W "${words[*]}" -- "$word")
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}

complete -o default -F _switchml switchml switchmld
