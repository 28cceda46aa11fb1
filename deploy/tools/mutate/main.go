// Command mutate says which small changes of packages' code their tests do not
// notice. Each change is seen by the compiler alone (go test -overlay): the work
// tree stays as it is. A change that no test notices is printed; one that does
// not compile is not counted; code that no test runs is.
//
// survivors.tsv lists the changes that nothing can notice, or nothing should
// have to, each with the reason; they are not tried. A row that fits no change
// any more is an error.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
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
	sample  = flag.Int("n", 0, "take so many of the mutants, at random; 0: all")
	seed    = flag.Uint64("seed", 1, "of what is taken at random")
	skip    = flag.String("skip", "", "tests that are not run, as go test has it")
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
	var paths []string
	for line := range strings.Lines(string(packages)) {
		dir, files, _ := strings.Cut(strings.TrimSpace(line), " ")
		for _, name := range strings.Fields(files) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	all, stale := candidates(paths, known())
	percent := score(all)
	_ = os.RemoveAll(temp)
	for _, s := range stale {
		fmt.Printf("survivors.tsv: %s has no %q that becomes %q: drop the row, or mend it\n", s.path, s.line, s.what)
	}
	if percent < *least {
		fmt.Printf("%.1f %% is below %v %%\n", percent, *least)
	}
	if percent < *least || len(stale) > 0 {
		os.Exit(1)
	}
}

// candidates returns the mutants of files that are to be tried, and the known
// survivors of these files that are no mutants any more.
func candidates(paths []string, known map[survivor]string) (all []mutant, stale []survivor) {
	shown := regexp.MustCompile(*only)
	seen := map[survivor]bool{}
	for _, path := range paths {
		for _, m := range mutants(path) {
			s := m.survivor()
			if _, lives := known[s]; lives {
				seen[s] = true
			} else if shown.MatchString(m.String()) {
				all = append(all, m)
			}
		}
	}
	for s := range known {
		if slices.Contains(paths, filepath.Join(here, s.path)) && !seen[s] {
			stale = append(stale, s)
		}
	}
	slices.SortFunc(stale, func(a, b survivor) int { return strings.Compare(a.path+a.line+a.what, b.path+b.line+b.what) })
	if *sample > 0 && *sample < len(all) {
		order := rand.New(rand.NewPCG(*seed, 0)).Perm(len(all))[:*sample]
		slices.Sort(order)
		taken := make([]mutant, 0, *sample)
		for _, i := range order {
			taken = append(taken, all[i])
		}
		all = taken
	}
	return all, stale
}

// score tries mutants, of one package after the other, and returns how many of
// them were noticed.
func score(all []mutant) (percent float64) {
	total := map[string]int{}
	for len(all) > 0 {
		dir, n := filepath.Dir(all[0].path), 1
		for n < len(all) && filepath.Dir(all[n].path) == dir {
			n++
		}
		began, count := time.Now(), tryAll(dir, all[:n])
		all = all[n:]
		for verdict, n := range count {
			total[verdict] += n
		}
		fmt.Println(strings.TrimPrefix(dir, here+"/")+":", summary(count))
		fmt.Fprintln(os.Stderr, time.Since(began).Round(time.Second))
	}
	fmt.Println("altogether:", summary(total))
	return noticed(total)
}

// noticed returns how many percent of the mutants that compile were.
func noticed(count map[string]int) float64 {
	dead := count["killed"] + count["timed out"]
	return 100 * float64(dead) / max(1, float64(dead+count["lives"]))
}

func summary(count map[string]int) string {
	dead := count["killed"] + count["timed out"]
	return fmt.Sprintf("%.1f %%: %d of %d mutants were noticed, %d of them by the time limit; %d others do not compile",
		noticed(count), dead, dead+count["lives"], count["timed out"], count["does not compile"])
}

// tryAll tries mutants of one package, prints those that live and counts the
// verdicts.
func tryAll(dir string, all []mutant) map[string]int {
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
	for _, m := range all {
		next <- m
	}
	close(next)
	wg.Wait()
	return count
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
	c := exec.CommandContext(ctx, "sh", "-c", `ulimit -v 8388608; exec nice "$0" "$@"`, bin, flag, "-test.skip="+*skip)
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
