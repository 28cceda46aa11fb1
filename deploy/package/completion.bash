# gpusteward itself lists the words that can follow. It gets the complete words, and the current
# word if that is a flag. Bash splits --flag=value into three words.
_gpusteward() {
	local current=${COMP_WORDS[COMP_CWORD]} words=() word
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		[[ $word == = ]] || words+=("$word")
	done
	[[ $current != = ]] || current=
	[[ $current != -* ]] || words+=("$current")
	local next
	next=$(gpusteward --completion-bash "${words[@]}" 2>/dev/null)
	mapfile -t COMPREPLY < <(compgen -W "$next" -X probe -- "$current")
}
complete -o default -F _gpusteward gpusteward
