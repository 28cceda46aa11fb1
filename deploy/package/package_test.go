//go:build deploy

// Package packages tests the packages that make package writes into dist/.
package packages

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"

	"gpusteward/internal/fixture"
)

// machines are the names of the architectures in the paths of libraries and in rpm, by their names in Debian and Go.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// built names the packages of one version and architecture.
type built struct{ version, deb, rpm string }

// in returns the packages that make package writes for an architecture into dir.
func in(dir, version, arch string) built {
	return built{version, filepath.Join(dir, "gpusteward_"+version+"_"+arch+".deb"),
		filepath.Join(dir, "gpusteward-"+version+"."+machines[arch]+".rpm")}
}

// shipped returns the packages in dist/: one of each format for an architecture.
func shipped(t *testing.T, arch string) built {
	t.Helper()
	dist := fixture.Value(filepath.Abs("../../dist"))(t)
	debs, _ := filepath.Glob(in(dist, "*", arch).deb)
	rpms, _ := filepath.Glob(in(dist, "*", arch).rpm)
	fixture.Stop(t, len(debs) != 1 || len(rpms) != 1, "%s has %q and %q; run make package", dist, debs, rpms)
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(debs[0]), "gpusteward_"), "_"+arch+".deb")
	return in(dist, version, arch)
}

// scratch is a directory that all tests share.
var scratch string

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "gpusteward-packages"); err != nil {
		panic(err)
	}
	status := m.Run()
	os.RemoveAll(scratch)
	os.Exit(status)
}

// run returns the standard output of a command. The test fails if the command does.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, &out, &errs)
	}
	return out.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(fixture.Value(os.ReadFile(path))(t))
}

// copied copies the tree to another directory, without build results.
var copied = sync.OnceValues(func() (string, error) {
	list := exec.Command("git", "-C", "../..", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	names, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("list the tree: %w", err)
	}
	tree := filepath.Join(scratch, "another", "tree")
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		from, to := filepath.Join("../..", name), filepath.Join(tree, name)
		info, err := os.Stat(from)
		if err != nil {
			continue // deleted
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(to, text, info.Mode()&0o100*0o111/0o100|0o644); err != nil {
			return "", err
		}
	}
	return tree, nil
})

// build builds the packages of a version for some architectures in the copy of the tree, and
// returns the directory with them.
func build(version string, arches ...string) (dir string, err error) {
	tree, err := copied()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("make", "-C", tree, "--no-print-directory", "package",
		"VERSION="+version, "REVISION="+commit("%h"))
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+commit("%ct"), "TZ=Asia/Kathmandu", "LC_ALL=C",
		"ARCH="+strings.Join(arches, " "))
	out, err := cmd.CombinedOutput()
	want := ""
	for _, arch := range arches {
		b := in("dist", version, arch)
		want += b.deb + "\n" + b.rpm + "\n"
	}
	if err != nil || string(out) != want {
		return "", fmt.Errorf("make package: %w\n%s", err, out)
	}
	return filepath.Join(tree, "dist"), nil
}

// commit returns a field of the current commit. Without git it is empty, and the builds differ.
func commit(format string) string {
	out, _ := exec.Command("git", "log", "-1", "--format="+format).Output()
	return strings.TrimSpace(string(out))
}

func TestTwoBuildsAreTheSame(t *testing.T) {
	dir := fixture.Value(build(shipped(t, "amd64").version, "amd64", "arm64"))(t)
	for arch := range machines {
		one := shipped(t, arch)
		other := in(dir, one.version, arch)
		for _, pair := range [][2]string{{one.deb, other.deb}, {one.rpm, other.rpm}} {
			a, b := read(t, pair[0]), read(t, pair[1])
			if sha256.Sum256([]byte(a)) != sha256.Sum256([]byte(b)) {
				t.Errorf("%s differs in a copy of the tree; if the tree changed, run make package",
					filepath.Base(pair[0]))
			}
		}
	}
}

func TestVersionOrder(t *testing.T) {
	t.Parallel()
	script := fixture.Value(filepath.Abs("version.sh"))(t)
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_COMMITTER_DATE=2026-01-02T03:04:05+05:00")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	var versions []string
	version := func(want string) {
		t.Helper()
		cmd := exec.Command(script)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
		out, err := cmd.Output()
		got := strings.TrimSpace(string(out))
		fixture.If(t, err != nil || !regexp.MustCompile("^"+want+"$").MatchString(got),
			"the version is %q, want %s (%v)", got, want, err)
		versions = append(versions, got)
	}
	version(`0\.0\.0`) // source without git; its order is undefined
	versions = nil
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "a")
	version(`0\.0\.0~git20260101220405\.[0-9a-f]{7,}`)
	git("tag", "v1.2.0-rc.1")
	version(`1\.2\.0~rc\.1`)
	git("commit", "-q", "--allow-empty", "-m", "b")
	version(`1\.2\.0~rc\.1\+1\.g[0-9a-f]{7,}`)
	git("tag", "v1.2.0")
	version(`1\.2\.0`)
	git("commit", "-q", "--allow-empty", "-m", "c")
	version(`1\.2\.0\+1\.g[0-9a-f]{7,}`)
	fixture.Must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	git("add", "file")
	version(`1\.2\.0\+1\.g[0-9a-f]{7,}\+dirty`)
	git("commit", "-q", "-m", "d")
	git("tag", "v1.10.0")
	version(`1\.10\.0`)
	for i := range len(versions) - 1 {
		a, b := versions[i], versions[i+1]
		run(t, "dpkg", "--compare-versions", a, "lt", b)
		got := strings.TrimSpace(run(t, "rpm", "--eval", fmt.Sprintf(`%%{lua: print(rpm.vercmp("%s", "%s"))}`, a, b)))
		fixture.Equal(t, got, "-1", "rpm compares %s with %s as", a, b)
	}
}

func TestBadVersionIsRefused(t *testing.T) {
	t.Parallel()
	for version, refused := range map[string]bool{"v1.2.3": true, "1.2.3-4": true, "unknown": true, "1.2.3": false} {
		dir := t.TempDir()
		for name, text := range map[string]string{
			"deploy/package/build.sh": read(t, "build.sh"),
			"gpusteward": "#!/bin/sh\necho 'gpusteward, version " + version +
				" (branch: , revision: a)'\n",
		} {
			fixture.Must(t, os.MkdirAll(filepath.Join(dir, "deploy/package"), 0o755))
			fixture.Program(t, filepath.Join(dir, name), text)
		}
		cmd := exec.Command(filepath.Join(dir, "deploy/package/build.sh"))
		cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1")
		out, err := cmd.CombinedOutput() // a good version fails later: there is nothing to package
		fixture.If(t, strings.HasPrefix(string(out), "VERSION="+version+": ") != refused || err == nil,
			"%s: %v, %s", version, err, out)
	}
}

// unpacked unpacks the deb for an architecture into a directory.
func unpacked(t *testing.T, arch string) string {
	t.Helper()
	dir := t.TempDir()
	run(t, "dpkg-deb", "-x", shipped(t, arch).deb, dir)
	return dir
}

func TestLintianFindsNothing(t *testing.T) {
	t.Parallel()
	out := run(t, "lintian", "--allow-root", "--fail-on", "error,warning", shipped(t, "amd64").deb,
		shipped(t, "arm64").deb)
	fixture.If(t, out != "", "lintian says\n%s", out)
}

// TestBothPackagesHaveTheSame checks that both packages have the same files at the same paths,
// except for directories that the formats prescribe.
func TestBothPackagesHaveTheSame(t *testing.T) {
	t.Parallel()
	for arch := range machines {
		t.Run(arch, func(t *testing.T) { haveTheSame(t, arch) })
	}
}

func haveTheSame(t *testing.T, arch string) {
	b := shipped(t, arch)
	places := strings.NewReplacer(
		"/lib/systemd/system/", "/usr/lib/systemd/system/",
		"/usr/share/zsh/vendor-completions/", "/usr/share/zsh/site-functions/")
	onlyDeb := []string{"/usr/share/doc/gpusteward/changelog.gz", "/usr/share/lintian/overrides/gpusteward"}
	onlyRPM := []string{
		"/usr/share/licenses/gpusteward/LICENSE", "/usr/lib/systemd/system-preset/80-gpusteward.preset",
	}
	var deb []string
	for line := range strings.Lines(run(t, "dpkg-deb", "-c", b.deb)) {
		fields := strings.Fields(line)
		name := strings.TrimPrefix(fields[5], ".")
		fixture.If(t, fields[1] != "root/root" && fields[1] != "0/0" || line[5] == 'w' || line[8] == 'w', "%s", line)
		if line[0] == '-' && !slices.Contains(onlyDeb, name) {
			deb = append(deb, places.Replace(name))
		}
	}
	var rpm []string
	list := run(t, "rpm", "-qp", "--queryformat",
		"[%{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILENAMES}\n]", b.rpm)
	for name := range strings.SplitSeq(strings.TrimSpace(list), "\n") {
		mode, rest, _ := strings.Cut(name, " ")
		owner, name, _ := strings.Cut(rest, " ")
		fixture.If(t, owner != "root:root" || mode[5] == 'w' || mode[8] == 'w', "rpm: %s %s %s", mode, owner, name)
		if mode[0] == '-' && !slices.Contains(onlyRPM, name) {
			rpm = append(rpm, name)
		}
	}
	slices.Sort(deb)
	slices.Sort(rpm)
	if !slices.Equal(deb, rpm) {
		t.Errorf("deb:\n%s\nrpm:\n%s", strings.Join(deb, "\n"), strings.Join(rpm, "\n"))
	}
	for _, want := range []string{
		"/usr/bin/gpusteward",
		"/usr/lib/" + machines[arch] + "-linux-gnu/gpusteward/libgpusteward.so",
		"/usr/libexec/gpusteward/healthcheck.sh",
		"/usr/lib/systemd/system/gpusteward.service",
		"/usr/lib/systemd/system/gpusteward-broker.socket",
		"/usr/lib/sysusers.d/gpusteward.conf",
		"/usr/lib/tmpfiles.d/gpusteward.conf",
		"/etc/default/gpusteward",
		"/etc/gpusteward/gpusteward.yml",
		"/usr/share/gpusteward/alerts/gpusteward.rules.yml",
		"/usr/share/gpusteward/dashboards/gpusteward-host.json",
		"/usr/share/gpusteward/prometheus/alertmanager.yml",
		"/usr/share/gpusteward/prometheus/alertmanager.tmpl",
		"/usr/share/doc/gpusteward/RUNBOOK.md",
		"/usr/share/doc/gpusteward/install.md",
		"/usr/share/doc/gpusteward/gpusteward.yml",
		"/usr/share/doc/gpusteward/copyright",
	} {
		fixture.If(t, !slices.Contains(deb, want), "%s is missing", want)
	}
	const conffiles = "/etc/default/gpusteward\n/etc/gpusteward/gpusteward.yml\n"
	fixture.Equal(t, run(t, "dpkg-deb", "-I", b.deb, "conffiles"), conffiles, "the deb's conffiles are")
	fixture.Equal(t, run(t, "rpm", "-qpc", b.rpm), conffiles, "the rpm's configuration is")
	got := run(t, "rpm", "-K", b.rpm)
	fixture.If(t, !strings.HasSuffix(got, ": digests OK\n"), "%v", got)
}

// needs returns the newest glibc version in the symbols that a file requires.
func needs(t *testing.T, file string) string {
	t.Helper()
	program := fixture.Value(elf.Open(file))(t)
	defer program.Close()
	symbols := fixture.Value(program.ImportedSymbols())(t)
	newest := "0"
	for _, s := range symbols {
		version, ok := strings.CutPrefix(s.Version, "GLIBC_")
		if ok && run(t, "rpm", "--eval", fmt.Sprintf(`%%{lua: print(rpm.vercmp("%s", "%s"))}`, version, newest)) == "1\n" {
			newest = version
		}
	}
	return newest
}

func TestGlibcDependency(t *testing.T) {
	t.Parallel()
	guide := strings.Join(strings.Fields(read(t, "../../docs/install.md")), " ")
	for arch, machine := range machines {
		b, root := shipped(t, arch), unpacked(t, arch)
		program := needs(t, filepath.Join(root, "usr/bin/gpusteward"))
		hook := needs(t, filepath.Join(root, "usr/lib/"+machine+"-linux-gnu/gpusteward/libgpusteward.so"))
		fixture.Contains(t, run(t, "dpkg-deb", "-f", b.deb, "Depends"), "libc6 (>= "+program+"),",
			"%s: the program needs glibc %s; the deb depends on", arch, program)
		requires := run(t, "rpm", "-qp", "--requires", b.rpm)
		fixture.Contains(t, requires, "libc.so.6(GLIBC_"+program+")(64bit)\n",
			"%s: the program needs glibc %s; the rpm requires", arch, program)
		fixture.Contains(t, guide, "and glibc "+program+" or newer",
			"%s: the program needs glibc %s; docs/install.md differs", arch, program)
		const most = 17 // an image with that glibc could otherwise start no program under the hook
		if minor, err := strconv.Atoi(strings.TrimPrefix(hook, "2.")); err != nil || minor > most ||
			!strings.Contains(guide, fmt.Sprintf("The hook needs glibc 2.%d,", most)) {
			t.Errorf("%s: the hook needs glibc %s, not 2.%d: enforcer/hook/src/base/glibc.h lacks a symbol, or docs/install.md "+
				"differs", arch, hook, most)
		}
	}
}

func TestCopyrightHasEveryModule(t *testing.T) {
	t.Parallel()
	root := unpacked(t, "amd64")
	text := read(t, filepath.Join(root, "usr/share/doc/gpusteward/copyright"))
	modules := 0
	for line := range strings.Lines(run(t, "go", "version", "-m", filepath.Join(root, "usr/bin/gpusteward"))) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "dep" {
			modules++
			if !strings.Contains(text, "\n"+fields[1]+" "+fields[2]+"\n") {
				t.Errorf("%s %s is linked in, but not in copyright", fields[1], fields[2])
			}
		}
	}
	fixture.AtLeast(t, modules, 30, "found only … modules in the program")
	for _, want := range []string{"\nGo 1.", "\nuPlot\n", "NVIDIA Corporation", "NOTICE TO USER"} {
		fixture.Contains(t, text, want, "copyright")
	}
}

// completed returns the program's completions after some words.
func completed(t *testing.T, root string, words ...string) []string {
	t.Helper()
	return strings.Fields(run(t, filepath.Join(root, "usr/bin/gpusteward"),
		append([]string{"--completion-bash"}, words...)...))
}

func TestManPageHasEveryCommandAndFlag(t *testing.T) {
	t.Parallel()
	root := unpacked(t, "amd64")
	page := run(t, "zcat", filepath.Join(root, "usr/share/man/man1/gpusteward.1.gz"))
	commands, flags := 0, 0
	var walk func(words []string)
	walk = func(words []string) {
		for _, flag := range completed(t, root, append(slices.Clone(words), "--")...) {
			flags++
			pattern := `(?m)[ B]` + regexp.QuoteMeta(strings.ReplaceAll(flag, "-", `\-`)) + `\b`
			if !regexp.MustCompile(pattern).MatchString(page) {
				t.Errorf("gpusteward %s: the man page lacks %s", strings.Join(words, " "), flag)
			}
		}
		if words != nil && words[0] != "config" {
			return // what follows are no commands
		}
		for _, command := range completed(t, root, words...) {
			hidden := []string{"probe", "call-driver"}
			if command := append(slices.Clone(words), command); !slices.Contains(hidden, command[0]) {
				commands++
				walk(command)
				heading := "\n.SS\n\\fB" + strings.ReplaceAll(strings.Join(command, " "), "-", `\-`)
				if command[0] != "help" && !strings.Contains(page, heading+`\fR`) &&
					!strings.Contains(page, heading+" ") {
					t.Errorf("the man page lacks gpusteward %s", strings.Join(command, " "))
				}
			}
		}
	}
	walk(nil)
	fixture.If(t, commands < 10 || flags < 50, "checked only %d commands and %d flags", commands, flags)
}

func TestManPageHasEveryKey(t *testing.T) {
	t.Parallel()
	page := run(t, "zcat", filepath.Join(unpacked(t, "amd64"), "usr/share/man/man5/gpusteward.yml.5.gz"))
	var root map[string]map[string]any
	fixture.Must(t, yaml.Unmarshal([]byte(read(t, "../gpusteward.yml")), &root))
	n := 0
	var walk func(path string, keys map[string]any)
	walk = func(path string, keys map[string]any) {
		for name, value := range keys {
			n++
			_, entry, found := strings.Cut(page, "\n.B "+path+name+"\n")
			entry, _, _ = strings.Cut(entry, "\n.TP\n")
			within, _ := value.(map[string]any)
			full := strings.Contains(entry, "\nUnit: ") && strings.Contains(entry, "Default: ") &&
				strings.Contains(entry, "\nCost: ")
			fixture.If(t, !found || len(within) == 0 && !full,
				"the man page lacks %s%s with unit, default and cost; it has %q", path, name, entry)
			walk(path+name+".", within)
		}
	}
	for section, keys := range root {
		fixture.Contains(t, page, "\n.SH "+strings.ToUpper(section)+"\n",
			"the man page lacks a section for %s", section)
		walk(section+".", keys)
	}
	fixture.AtLeast(t, n, 30, "checked only … keys")
}

func TestManPagesRender(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(filepath.Join(unpacked(t, "amd64"), "usr/share/man"),
		func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				out := run(t, "mandoc", "-T", "lint", "-W", "warning", path)
				fixture.If(t, out != "", "%v", out)
			}
			return err
		})
	fixture.Must(t, err)
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	root := unpacked(t, "amd64")
	shells := map[string][]string{
		"bash": {"bash", "--norc", "-c", `. "$0"/usr/share/bash-completion/completions/gpusteward
			COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
			registered=$(complete -p gpusteward) && [[ $registered =~ -F\ ([^ ]+) ]] && ${BASH_REMATCH[1]} &&
			printf '%s\n' "${COMPREPLY[@]}"`},
		"zsh": {"zsh", "-f", "-c", `fpath=("$0"/usr/share/zsh/vendor-completions $fpath)
			autoload -Uz compinit && compinit -u -D && [[ $_comps[gpusteward] = _gpusteward ]] || exit 1
			compset() { words[CURRENT]=${words[CURRENT]#*=}; }
			compadd() { local w; for w in ${(P)4}; do [[ $w != $words[CURRENT]* ]] || print -r -- $w; done }
			words=("$@") CURRENT=$#; _gpusteward`},
	}
	for shell, command := range shells {
		for _, c := range []struct {
			words []string
			want  string
		}{
			{[]string{"gpusteward", "--ro"}, "--role"},
			{[]string{"gpusteward", "dr"}, "drain"},
			{[]string{"gpusteward", "stat"}, "status"},
			{[]string{"gpusteward", "config", ""}, "check"},
			{[]string{"gpusteward", "check", "--fail"}, "--fail-on"},
			{[]string{"gpusteward", "--role", "en"}, "enforce"},
			{[]string{"gpusteward", "check", "--only", "gpu_lo"}, "gpu_lost"},
			{map[string][]string{"bash": {"gpusteward", "--demo", "=", "six"}, "zsh": {"gpusteward", "--demo=six"}}[shell], "sixteen"},
		} {
			cmd := exec.Command(command[0], append(append(slices.Clone(command[1:]), root), c.words...)...)
			cmd.Env = append(os.Environ(), "PATH="+filepath.Join(root, "usr/bin")+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != c.want {
				t.Errorf("%s: %q completes to %q, want %q (%v)", shell, c.words, got, c.want, err)
			}
		}
	}
}
