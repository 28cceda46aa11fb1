// Command mutate finds small changes of packages' code (mutants) that their tests do not notice.
// The changes only reach the compiler (go test -overlay), and the work tree stays as it is. A
// change that no test notices is printed. A change that does not compile is not counted. A
// change of code that no test runs is.
//
// Changes of functions and of package-level composite literals are compiled together into one
// test binary, which is told the change to use, because compiling takes longer than most tests.
// Quick tests run first.
//
// survivors.tsv lists changes that no test can or should notice, with reasons. They are not
// tried. A row that matches no change is an error. A row without a line and a change covers its
// whole file. Files that use cgo are never tried.
package main

import (
	"context"
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
	workers = flag.Int("p", 1, "mutants to try at the same time")
	only    = flag.String("only", "", "regular expression: try only mutants with a matching line of output")
	sample  = flag.Int("n", 0, "number of random mutants to try, of each file one before any has two; 0 is all")
	seed    = flag.Uint64("seed", 1, "seed of the random choice")
	skip    = flag.String("skip", "", "tests not to run, as in go test -skip")
)

var (
	here, temp string
	misspelt   = regexp.MustCompile(`\.go:\d+:\d+: `) // an error of the compiler, not of its environment
)

// check ends the program if there is an error other than a failed test.
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
	list := append([]string{"list", "-f", "{{.Dir}} {{join .GoFiles \" \"}}"}, flag.Args()...)
	packages, err := exec.Command("go", list...).Output()
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
		fmt.Printf("survivors.tsv: %s has no %q that becomes %q: remove or correct the row\n", s.path, s.line, s.what)
	}
	if percent < *least {
		fmt.Printf("%.1f %% is below %v %%\n", percent, *least)
	}
	if percent < *least || len(stale) > 0 {
		os.Exit(1)
	}
}

// candidates returns the mutants of files to try, and the known survivors in these files that
// match no mutant.
func candidates(paths []string, known map[survivor]string) (all []mutant, stale []survivor) {
	shown := regexp.MustCompile(*only)
	seen := map[survivor]bool{}
	for _, path := range paths {
		whole := survivor{path: strings.TrimPrefix(path, here+"/")}
		if _, lives := known[whole]; lives {
			seen[whole] = true
			continue
		}
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
	slices.SortFunc(stale, func(a, b survivor) int {
		return strings.Compare(a.path+a.line+a.what, b.path+b.line+b.what)
	})
	if *sample > 0 && *sample < len(all) {
		var order, more []int
		had := map[string]bool{}
		for _, i := range rand.New(rand.NewPCG(*seed, 0)).Perm(len(all)) {
			if path := all[i].path; had[path] {
				more = append(more, i)
			} else {
				order, had[path] = append(order, i), true
			}
		}
		order = append(order, more...)[:*sample]
		slices.Sort(order)
		taken := make([]mutant, 0, *sample)
		for _, i := range order {
			taken = append(taken, all[i])
		}
		all = taken
	}
	return all, stale
}

// score tries mutants, package by package, and returns the percentage that was noticed.
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

// noticed returns the percentage of noticed mutants among those that compile.
func noticed(count map[string]int) float64 {
	dead := count["killed"] + count["timed out"]
	return 100 * float64(dead) / max(1, float64(dead+count["lives"]))
}

func summary(count map[string]int) string {
	dead := count["killed"] + count["timed out"]
	return fmt.Sprintf("%.1f %%: %d of %d mutants were noticed, %d of them by the time limit; %d others do not compile",
		noticed(count), dead, dead+count["lives"], count["timed out"], count["does not compile"])
}

// tryAll tries mutants of one package, prints the survivors and counts the verdicts.
func tryAll(dir string, all []mutant) map[string]int {
	tests := unchanged(dir)
	count := map[string]int{}
	var mu sync.Mutex
	for some := range slices.Chunk(all, 256) {
		next := make(chan int)
		var wg sync.WaitGroup
		choice := together(dir, some)
		for worker := range max(*workers, 1) {
			wg.Go(func() {
				for i := range next {
					verdict := tests.try(dir, some[i], choice, i, filepath.Join(temp, strconv.Itoa(worker)))
					mu.Lock()
					if count[verdict]++; verdict == "lives" {
						fmt.Println(some[i])
					}
					mu.Unlock()
				}
			})
		}
		for i := range some {
			next <- i
		}
		close(next)
		wg.Wait()
	}
	return count
}

// tests describes the tests of a package.
type tests struct {
	slow  string        // regular expression for tests that run only if the others notice nothing
	limit time.Duration // for a mutant
}

var passed = regexp.MustCompile(`(?m)^ *--- PASS: (\w+)\S* \((.+)s\)$`)

// unchanged runs the tests on the unchanged code three times, because a flaky test would hide
// survivors.
func unchanged(dir string) tests {
	bin := filepath.Join(temp, "unchanged")
	check(compile(dir, bin))
	began := time.Now()
	out, err := test(context.Background(), dir, bin, "-test.count=3", "-test.v", "-test.skip="+*skip).CombinedOutput()
	check(err, "with nothing changed:", string(out))
	var all float64
	seconds := map[string]float64{}
	for _, m := range passed.FindAllStringSubmatch(string(out), -1) {
		took, _ := strconv.ParseFloat(m[2], 64)
		seconds[m[1]] += took
		all += took
	}
	slow := "none"
	for name, took := range seconds {
		if took > all/50 {
			slow += "|" + name
		}
	}
	return tests{"^(" + slow + ")$", 5*time.Second + 2*time.Since(began)}
}

// compile compiles the tests of a package.
func compile(dir, bin string, flags ...string) error {
	args := append([]string{"go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", bin}, append(flags, dir)...)
	if out, err := exec.Command("nice", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// test runs a test binary with at most 8 GiB of memory, because some mutants append forever.
func test(ctx context.Context, dir, bin string, flags ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "sh",
		append([]string{"-c", `ulimit -v 8388608; exec nice "$0" "$@"`, bin}, flags...)...)
	c.Dir, c.WaitDelay = dir, time.Second
	return c
}

// try runs the tests with one change, the quick tests first. A mutant outside of all is compiled
// by itself, into files whose names begin with path.
func (t tests) try(dir string, m mutant, all choice, number int, path string) (verdict string) {
	if all.misspelt[number] {
		return "does not compile"
	}
	bin := all.bin
	if m.place.end == 0 {
		bin = path + ".test"
		flag := overlay(path, map[string]string{m.path: m.source()})
		if err := compile(dir, bin, flag); err != nil && misspelt.MatchString(err.Error()) {
			return "does not compile"
		} else {
			check(err, m)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.limit)
	defer cancel()
	for _, which := range [][]string{
		{"-test.skip=" + strings.TrimPrefix(*skip+"|"+t.slow, "|")},
		{"-test.skip=" + *skip, "-test.run=" + t.slow},
	} {
		c := test(ctx, dir, bin, append(which, "-test.failfast")...)
		c.Env = append(os.Environ(), fmt.Sprint(chosen, "=", number+1))
		var exit *exec.ExitError
		switch err := c.Run(); {
		case ctx.Err() != nil:
			return "timed out"
		case err == nil:
			continue
		case !errors.As(err, &exit) || exit.ExitCode() >= 126: // the binary did not run
			check(err, m)
		}
		return "killed"
	}
	return "lives"
}
