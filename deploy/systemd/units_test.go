//go:build deploy

// Package systemd has the units and their tests. systemd's own tools check the units. The tests
// start the units' commands with their users and capabilities, without a running systemd.
package systemd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// agent is a copy of the program that make build built.
var agent string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "units")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil { // for the units' users, who cannot read every checkout
			panic(err)
		}
		agent = filepath.Join(dir, "gpusteward")
		if out, err := exec.Command("cp", "../../gpusteward", agent).CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%s: run make build", out))
		}
		return m.Run()
	}())
}

// needs skips a test without root or without the programs.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: needs root")
	}
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("NOT TESTED: %v; make tools installs it", err)
		}
	}
}

// A unit is a parsed unit file: values by section and key, such as "Service.User".
type unit map[string][]string

func readUnit(t *testing.T, name string) unit {
	t.Helper()
	text := fixture.Value(os.ReadFile(name))(t)
	u, section := unit{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		key, value, assigns := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		case assigns:
			u[section+"."+key] = append(u[section+"."+key], value)
		default:
			t.Fatalf("%s: %q", name, line)
		}
	}
	return u
}

// last returns the last value of a key, which takes effect, or "".
func (u unit) last(key string) string {
	if all := u[key]; len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// words splits a command of a unit like systemd, and substitutes its variables.
func words(t *testing.T, command string, variables map[string]string) (all []string) {
	t.Helper()
	for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(command, -1) {
		name, is := strings.CutPrefix(word, "$")
		switch {
		case is:
			value, known := variables[name]
			fixture.Stop(t, !known, "%s: unknown variable $%s", command, name)
			all = append(all, strings.Fields(value)...)
		default:
			all = append(all, strings.ReplaceAll(strings.Trim(word, "'"), "$$", "$"))
		}
	}
	return all
}

// run returns the output of a program and its exit status.
func run(t *testing.T, argv ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.CombinedOutput()
	fixture.Stop(t, cmd.ProcessState == nil, "%v", err)
	return string(out), cmd.ProcessState.ExitCode()
}

func do(t *testing.T, argv ...string) string {
	t.Helper()
	out, status := run(t, argv...)
	fixture.Need(t, status, 0, "%q: exit status …\n%s", argv, out)
	return out
}

func put(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	fixture.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	fixture.Must(t, os.WriteFile(path, []byte(text), mode))
}

var units = []string{"gpusteward.service", "gpusteward.socket", "gpusteward-broker.service", "gpusteward-broker.socket"}

// TestUnitsVerify checks that systemd-analyze verify finds no fault, with the units' programs present.
func TestUnitsVerify(t *testing.T) {
	t.Parallel()
	needs(t, "systemd-analyze")
	root := t.TempDir()
	do(t, "cp", "-r", "/lib/systemd/system", root)
	for _, dir := range []string{"usr/bin", "usr/lib/systemd", "etc/systemd/system", "bin"} {
		fixture.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	fixture.Must(t, os.Rename(filepath.Join(root, "system"), filepath.Join(root, "usr/lib/systemd/system")))
	for _, program := range []string{"usr/bin/gpusteward", "bin/sh", "bin/kill"} {
		put(t, filepath.Join(root, program), "#!/bin/sh\n", 0o755)
	}
	for _, name := range units {
		do(t, "cp", name, filepath.Join(root, "etc/systemd/system"))
	}
	verify := append([]string{"systemd-analyze", "verify", "--root=" + root}, units...)
	out := do(t, verify...)
	fixture.If(t, out != "", "%v", out)
	// It does find a missing program and an unknown key.
	put(t, filepath.Join(root, "etc/systemd/system/gpusteward.service"),
		"[Service]\nExecStart=/usr/bin/gpustewart\nMemoryMost=1G\n", 0o644)
	if out, status := run(t, verify...); status == 0 || !strings.Contains(out, "gpustewart") ||
		!strings.Contains(out, "MemoryMost") {
		t.Errorf("exit status %d: %s", status, out)
	}
}

// TestExposure bounds the units' exposure level, of at most 10, by systemd-analyze security.
func TestExposure(t *testing.T) {
	t.Parallel()
	needs(t, "systemd-analyze")
	for name, most := range map[string]float64{"gpusteward.service": 2, "gpusteward-broker.service": 3.5} {
		out := do(t, "systemd-analyze", "security", "--offline=true", "--no-pager", "./"+name)
		m := regexp.MustCompile(`Overall exposure level for \S+: ([\d.]+)`).FindStringSubmatch(out)
		fixture.Stop(t, m == nil, "%s: no score in\n%s", name, out)
		if score, err := strconv.ParseFloat(m[1], 64); err != nil || score > most {
			t.Errorf("%s: %s, want at most %v\n%s", name, m[1], most, out)
		}
	}
	// These settings would improve the score and blind the agent.
	for _, name := range []string{"gpusteward.service", "gpusteward-broker.service"} {
		u := readUnit(t, name)
		for key, values := range map[string][]string{
			"PrivateDevices": {"", "no"}, "PrivateUsers": {"", "no"}, "ProtectProc": {"", "default"},
			"ProcSubset": {"", "all"}, "DevicePolicy": {"closed"}, "ProtectKernelLogs": {"", "no"},
		} {
			if value := u.last("Service." + key); !slices.Contains(values, value) {
				t.Errorf("%s: %s=%s", name, key, value)
			}
		}
		for _, device := range []string{"char-195 rw", "char-nvidia rw", "char-nvidia-frontend rw",
			"char-nvidiactl rw", "char-nvidia-uvm rw", "/dev/kmsg r"} {
			if !slices.Contains(u["Service.DeviceAllow"], device) {
				t.Errorf("%s: no DeviceAllow=%s", name, device)
			}
		}
	}
	if u := readUnit(t, "gpusteward-broker.service"); u.last("Service.ProtectControlGroups") != "no" ||
		u.last("Service.PrivateTmp") != "" {
		t.Error("gpusteward-broker.service cannot freeze cgroups, or cannot reach MPS")
	}
}

// A root is a directory with the files that the package and systemd create on a host.
type root struct {
	t        *testing.T
	dir      string
	uid, gid int // of the user gpusteward
}

// newRoot creates a root with systemd's own tools.
func newRoot(t *testing.T) root {
	t.Helper()
	needs(t, "systemd-sysusers", "systemd-tmpfiles", "setpriv")
	dir := fixture.ShortDir(t)
	fixture.Must(t, os.Chmod(dir, 0o755))
	r := root{t: t, dir: dir}
	for from, to := range map[string]string{
		"gpusteward.sysusers": "usr/lib/sysusers.d/gpusteward.conf",
		"gpusteward.tmpfiles": "usr/lib/tmpfiles.d/gpusteward.conf",
		"gpusteward.default":  "etc/default/gpusteward",
	} {
		text := fixture.Value(os.ReadFile(from))(t)
		put(t, r.path(to), string(text), 0o644)
	}
	fixture.Contains(t, do(t, "systemd-sysusers", "--root="+dir, "--dry-run"), "gpusteward",
		"systemd-sysusers --dry-run")
	do(t, "systemd-sysusers", "--root="+dir)
	do(t, "systemd-tmpfiles", "--root="+dir, "--create", "gpusteward.conf")
	passwd, err := os.ReadFile(r.path("etc/passwd"))
	entry := regexp.MustCompile(`(?m)^gpusteward:[^:]*:(\d+):(\d+):[^:]*:/var/lib/gpusteward:(\S+)$`)
	m := entry.FindStringSubmatch(string(passwd))
	fixture.Stop(t, err != nil || m == nil || !strings.HasSuffix(m[3], "/nologin"),
		"%v: no system user gpusteward without a shell in\n%s", err, passwd)
	r.uid, _ = strconv.Atoi(m[1])
	r.gid, _ = strconv.Atoi(m[2])
	fixture.Stop(t, r.uid == 0 || r.uid >= 1000 || r.gid == 0, "gpusteward is uid %d, gid %d", r.uid, r.gid)
	return r
}

func (r root) path(name string) string { return filepath.Join(r.dir, name) }

// is checks the mode and the owner of a file.
func (r root) is(name string, mode os.FileMode, uid, gid int) {
	r.t.Helper()
	info, err := os.Stat(r.path(name))
	if err != nil {
		r.t.Error(err)
		return
	}
	owner := info.Sys().(*syscall.Stat_t)
	if info.Mode() != mode || int(owner.Uid) != uid || int(owner.Gid) != gid {
		r.t.Errorf("%s has mode %v and owner %d:%d, want %v and %d:%d",
			name, info.Mode(), owner.Uid, owner.Gid, mode, uid, gid)
	}
}

// TestSysusersAndTmpfiles checks that only root can create files beside the observer's directory.
func TestSysusersAndTmpfiles(t *testing.T) {
	t.Parallel()
	r := newRoot(t)
	for _, dir := range []string{
		"run/gpusteward", "run/gpusteward/broker", "run/gpusteward/slurm", "run/gpusteward/tenants.d",
	} {
		r.is(dir, os.ModeDir|0o755, 0, 0)
	}
	r.makeDirectories(readUnit(t, "gpusteward-broker.service"))
	r.makeDirectories(readUnit(t, "gpusteward.service"))
	r.is("run/gpusteward", os.ModeDir|0o755, 0, 0)
	r.is("run/gpusteward/agent", os.ModeDir|0o755, r.uid, r.gid)
	r.is("var/lib/gpusteward", os.ModeDir|0o755, r.uid, r.gid)
	r.is("var/lib/gpusteward-broker", os.ModeDir|0o700, 0, 0)
	r.is("etc/gpusteward", os.ModeDir|0o755, 0, 0)
}

// user returns the user and group of a unit.
func (r root) user(u unit) (uid, gid int) {
	switch name := u.last("Service.User"); name {
	case "":
		return 0, 0
	case "gpusteward":
		return r.uid, r.gid
	default:
		r.t.Fatalf("unknown user %s", name)
		return 0, 0
	}
}

// makeDirectories creates the directories that systemd creates for a unit.
func (r root) makeDirectories(u unit) {
	r.t.Helper()
	uid, gid := r.user(u)
	for key, parent := range map[string]string{
		"RuntimeDirectory": "run", "StateDirectory": "var/lib", "ConfigurationDirectory": "etc",
	} {
		for _, name := range strings.Fields(u.last("Service." + key)) {
			dir := r.path(filepath.Join(parent, name))
			fixture.Must(r.t, os.MkdirAll(dir, 0o755))
			mode := uint64(0o755)
			if text := u.last("Service." + key + "Mode"); text != "" {
				mode, _ = strconv.ParseUint(text, 8, 32)
			}
			fixture.Must(r.t, os.Chmod(dir, os.FileMode(mode)))
			if key != "ConfigurationDirectory" {
				fixture.Must(r.t, os.Chown(dir, uid, gid))
			}
		}
	}
}

// confined returns a command prefix that sets a unit's user and capabilities.
func (r root) confined(u unit) []string {
	uid, gid := r.user(u)
	capabilities := func(key string) string {
		text := "-all"
		for _, name := range strings.Fields(u.last("Service." + key)) {
			text += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
		}
		return text
	}
	argv := []string{"setpriv", fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", gid), "--clear-groups",
		"--bounding-set=" + capabilities("CapabilityBoundingSet"),
		"--inh-caps=" + capabilities("AmbientCapabilities"), "--ambient-caps=" + capabilities("AmbientCapabilities")}
	if u.last("Service.NoNewPrivileges") == "yes" {
		argv = append(argv, "--no-new-privs")
	}
	return argv
}

// options returns GPUSTEWARD_OPTS of /etc/default/gpusteward, with flags for the directories in r and further ones.
func (r root) options(more ...string) map[string]string {
	r.t.Helper()
	text, err := os.ReadFile(r.path("etc/default/gpusteward"))
	m := regexp.MustCompile(`(?m)^GPUSTEWARD_OPTS="(.*)"$`).FindStringSubmatch(string(text))
	fixture.Stop(r.t, err != nil || m == nil, "%v: no GPUSTEWARD_OPTS in %s", err, text)
	all := append([]string{
		m[1], "--runtime.dir=" + r.path("run/gpusteward"), "--config.file=" + r.path("etc/gpusteward/gpusteward.yml"),
	}, more...)
	return map[string]string{"GPUSTEWARD_OPTS": strings.Join(all, " ")}
}

// command returns a command of a unit, with the built program and with its files in r.
func (r root) command(u unit, key string, at int, variables map[string]string) []string {
	r.t.Helper()
	argv := words(r.t, u["Service."+key][at], variables)
	for i, word := range argv {
		switch {
		case word == "/usr/bin/gpusteward":
			argv[i] = agent
		case strings.HasPrefix(word, "--state.dir=/var/lib/"):
			argv[i] = "--state.dir=" + r.path(strings.TrimPrefix(word, "--state.dir="))
		case strings.HasPrefix(word, "/etc/"):
			argv[i] = r.path(word)
		}
	}
	return argv
}

// seconds returns a time span of a unit.
func seconds(t *testing.T, u unit, key string) time.Duration {
	t.Helper()
	n, err := strconv.Atoi(u.last("Service." + key))
	fixture.Stop(t, err != nil, "%s: %v", key, err)
	return time.Duration(n) * time.Second
}
