// Command mutate says which small changes of a package's code its tests do not
// notice. Each change is seen by the compiler alone (go test -overlay): the work
// tree stays as it is. A change that no test notices is printed; one that does
// not compile is not counted; code that no test runs is.
//
// A line with the comment "// mutant: equivalent because ..." at its end, or
// alone above it, is not changed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

var (
	root    = flag.String("C", ".", "directory of the module")
	least   = flag.Float64("min", 95, "score in percent below which the exit status is 1")
	workers = flag.Int("p", 1, "mutants at the same time")
	only    = flag.String("only", "", "take the mutants whose line of output matches this regular expression")
)

var (
	here, temp string
	misspelt   = regexp.MustCompile(`\.go:\d+:\d+: `) // the compiler's word, rather than that of what failed beside it
)

// check ends the program with an error, which is no verdict on a test.
func check(err error, of ...any) {
	if err != nil {
		_ = os.RemoveAll(temp)
		fmt.Fprintln(os.Stderr, append([]any{"mutate:", err}, of...)...)
		os.Exit(2)
	}
}

func main() {
	flag.Parse()
	check(os.Chdir(*root))
	var err error
	here, err = os.Getwd()
	check(err)
	temp, err = os.MkdirTemp("", "mutate")
	check(err)
	interrupted, _ := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(interrupted, func() { check(context.Cause(interrupted)) })
	packages, err := exec.Command("go", append([]string{"list", "-f", "{{.Dir}} {{join .GoFiles \" \"}}"}, flag.Args()...)...).Output()
	check(err, "go list", flag.Args())
	worst := 100.0
	for line := range strings.Lines(string(packages)) {
		dir, files, _ := strings.Cut(strings.TrimSpace(line), " ")
		began := time.Now()
		worst = min(worst, score(dir, strings.Fields(files)))
		fmt.Println(time.Since(began).Round(time.Second))
	}
	_ = os.RemoveAll(temp)
	if worst < *least {
		fmt.Printf("%.1f %% is below %v %%\n", worst, *least)
		os.Exit(1)
	}
}

// score tries all mutants of a package.
func score(dir string, files []string) (percent float64) {
	shown := regexp.MustCompile(*only)
	limit := unchanged(dir)
	count := map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan mutant)
	for worker := range max(*workers, 1) {
		wg.Go(func() {
			for m := range next {
				verdict := try(dir, m, limit, filepath.Join(temp, strconv.Itoa(worker)))
				mu.Lock()
				if count[verdict]++; verdict == "lives" {
					fmt.Println(m)
				}
				mu.Unlock()
			}
		})
	}
	skipped := 0
	for _, name := range files {
		all, equivalent := mutants(filepath.Join(dir, name))
		skipped += equivalent
		for _, m := range all {
			if shown.MatchString(m.String()) {
				next <- m
			}
		}
	}
	close(next)
	wg.Wait()
	dead := count["killed"] + count["timed out"]
	percent = 100 * float64(dead) / max(1, float64(dead+count["lives"]))
	fmt.Printf("%s: %.1f %%: %d of %d mutants were noticed, %d of them by the time limit; of others %d do not compile and %d are marked as equivalent\n",
		strings.TrimPrefix(dir, here+"/"), percent, dead, dead+count["lives"], count["timed out"], count["does not compile"], skipped)
	return percent
}

// unchanged runs the tests of the code as it is, thrice, because a test that
// fails at times would kill what lives. It returns how long a mutant's may take.
func unchanged(dir string) (limit time.Duration) {
	bin := filepath.Join(temp, "unchanged")
	out, err := exec.Command("go", "test", "-c", "-o", bin, dir).CombinedOutput()
	check(err, string(out))
	began := time.Now()
	out, err = test(context.Background(), dir, bin, "-test.count=3").CombinedOutput()
	check(err, "with nothing changed:", string(out))
	return 5*time.Second + 2*time.Since(began)
}

// test runs a test binary, with 8 GiB at most: some mutants append for ever.
func test(ctx context.Context, dir, bin, flag string) *exec.Cmd {
	c := exec.CommandContext(ctx, "sh", "-c", `ulimit -v 8388608; exec nice "$0" "$@"`, bin, flag)
	c.Dir, c.WaitDelay = dir, time.Second
	return c
}

// try compiles the tests with one change, into files that begin with path, and
// runs them.
func try(dir string, m mutant, limit time.Duration, path string) (verdict string) {
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{m.path: path + ".go"}})
	check(errors.Join(err, os.WriteFile(path+".go", m.source, 0o600), os.WriteFile(path+".json", overlay, 0o600)))
	out, err := exec.Command("nice", "go", "test", "-c", "-ldflags=-s -w", "-overlay", path+".json", "-o", path+".test", dir).CombinedOutput()
	if err != nil && misspelt.Match(out) {
		return "does not compile"
	}
	check(err, m, string(out))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var exit *exec.ExitError
	switch err := test(ctx, dir, path+".test", "-test.failfast").Run(); {
	case err == nil:
		return "lives"
	case ctx.Err() != nil:
		return "timed out"
	case !errors.As(err, &exit) || exit.ExitCode() >= 126: // it was not run
		check(err, m)
	}
	return "killed"
}
