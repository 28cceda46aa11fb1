//go:build ignore

// This program writes syscalls.tsv, the names of Linux's system calls and their
// numbers on amd64 and arm64, from the source of the golang.org/x/sys version
// that go.mod pins. Run it with go generate.
package main

import (
	"cmp"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var number = regexp.MustCompile(`(?m)^\tSYS_(\w+)\s+= (\d+)$`)

func main() {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		log.Fatal(err)
	}
	numbers := map[string][2]string{}
	for i, arch := range []string{"amd64", "arm64"} {
		source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+arch+".go"))
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range number.FindAllStringSubmatch(string(source), -1) {
			name := strings.ToLower(m[1])
			both := numbers[name]
			both[i] = m[2]
			numbers[name] = both
		}
	}
	var table strings.Builder
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		fmt.Fprintf(&table, "%s\t%s\t%s\n", name, cmp.Or(numbers[name][0], "-"), cmp.Or(numbers[name][1], "-"))
	}
	if err := os.WriteFile("syscalls.tsv", []byte(table.String()), 0o644); err != nil {
		log.Fatal(err)
	}
}
