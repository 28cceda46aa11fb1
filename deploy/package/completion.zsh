#compdef gpusteward
# gpusteward itself lists the words that can follow. It gets the complete words, and the current
# word if that is a flag.
local -a before=("${(@)words[2,CURRENT-1]}") next
[[ $words[CURRENT] != -* ]] || before+=("$words[CURRENT]")
next=(${(f)"$(gpusteward --completion-bash $before 2>/dev/null)"})
compadd -a -F '(probe)' next || _files
