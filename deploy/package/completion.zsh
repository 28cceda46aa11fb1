#compdef gpusteward
# gpusteward itself lists the words that can follow. It gets the complete words, and the current
# word if that is a flag, or the flag alone if it has a value.
local -a before=("${(@)words[2,CURRENT-1]}") next
if [[ $words[CURRENT] == --*=* ]]; then
	before+=("${words[CURRENT]%%=*}")
	compset -P '*='
elif [[ $words[CURRENT] == -* ]]; then
	before+=("$words[CURRENT]")
fi
next=(${(f)"$(gpusteward --completion-bash $before 2>/dev/null)"})
compadd -a -F '(probe)' next || _files
