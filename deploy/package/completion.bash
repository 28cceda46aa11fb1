# gpusteward says itself what may come next, without a part of a command.
_gpusteward() {
	local current=${COMP_WORDS[COMP_CWORD]} words=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
	[[ $current != -* ]] || words+=("$current")
	mapfile -t COMPREPLY < <(compgen -W "$(gpusteward --completion-bash "${words[@]}" 2>/dev/null)" -X probe -- "$current")
}
complete -o default -F _gpusteward gpusteward
