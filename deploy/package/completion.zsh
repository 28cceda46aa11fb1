#compdef gpusteward
# gpusteward says itself what may come next, without a part of a command.
local -a before=("${(@)words[2,CURRENT-1]}") next
[[ $words[CURRENT] != -* ]] || before+=("$words[CURRENT]")
next=(${(f)"$(gpusteward --completion-bash $before 2>/dev/null)"})
compadd -a -F '(probe)' next || _files
