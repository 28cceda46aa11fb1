//go:build deploy

package packages

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// included lists packages of the chroot beyond a minimal Debian: replacements for systemd, and
// the commands of docs/install.md.
const included = "systemd-standalone-sysusers,systemd-standalone-tmpfiles,curl,openssl,apache2-utils"

// debian returns a tarball of Debian 12, which is built once and kept in the user's cache.
var debian = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sources := "/etc/apt/sources.list.d/debian.sources"
	if info, err := os.Stat("/etc/apt/sources.list"); err == nil && info.Size() > 0 {
		sources = "/etc/apt/sources.list"
	}
	text, err := os.ReadFile(sources)
	if err != nil {
		return "", fmt.Errorf("this machine's Debian mirror: %w", err)
	}
	key := sha256.Sum256(append(text, included...))
	tarball := filepath.Join(cache, "gpusteward", fmt.Sprintf("bookworm-%x.tar", key[:8]))
	if _, err := os.Stat(tarball); err == nil {
		return tarball, nil
	}
	if err := os.MkdirAll(filepath.Dir(tarball), 0o755); err != nil {
		return "", err
	}
	made := filepath.Join(scratch, "bookworm.tar")
	out, err := exec.Command("mmdebstrap", "--quiet", "--variant=minbase", "--mode=root",
		"--include="+included, "bookworm", made, sources).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mmdebstrap: %w\n%s", err, out)
	}
	if out, err := exec.Command("mv", made, tarball).CombinedOutput(); err != nil { // may cross file systems
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return tarball, nil
})

// A chroot is a Debian with testdata/systemctl as its systemctl. It has namespaces of its own:
// loopback is its only network interface, and its processes end with it.
type chroot struct {
	t    *testing.T
	root string
	init string // PID of its first process
}

func newChroot(t *testing.T) *chroot {
	t.Helper()
	tarball := fixture.Value(debian())(t)
	c := &chroot{t: t, root: t.TempDir()}
	run(t, "tar", "-C", c.root, "-xf", tarball, "--exclude=./dev/*")
	run(t, "install", "testdata/systemctl", filepath.Join(c.root, "usr/bin/systemctl"))
	run(t, "mkdir", "-p", filepath.Join(c.root, "run/systemd/system"))
	unshare := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c",
		`ip link set lo up && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && echo ready &&
		exec chroot "$0" sleep infinity`, c.root)
	unshare.Stderr = os.Stderr
	out := fixture.Value(unshare.StdoutPipe())(t)
	fixture.Must(t, unshare.Start())
	t.Cleanup(func() {
		unshare.Process.Kill()
		unshare.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	fixture.Stop(t, line != "ready\n", "the chroot did not start: %q, %v", line, err)
	pid := unshare.Process.Pid
	c.init = strings.TrimSpace(read(t, fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)))
	return c
}

// command runs a shell script in the chroot. With host it uses the chroot's namespaces, but the
// root directory of the machine.
func (c *chroot) command(host bool, script string) (string, error) {
	args := []string{"--target", c.init, "--mount", "--net", "--pid"}
	if !host {
		args = append(args, "--root", "--wd")
	}
	cmd := exec.Command("nsenter", append(args, "sh", "-e", "-c", script)...)
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "ROOT=" + c.root,
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (c *chroot) run(script string) string {
	c.t.Helper()
	out, err := c.command(false, script)
	fixture.Stop(c.t, err != nil, "%s: %v\n%s", script, err, out)
	return out
}

// rpm runs the machine's rpm on the chroot; the packages' scripts run in the chroot.
func (c *chroot) rpm(args string) string {
	c.t.Helper()
	out, err := c.command(true, `rpm --root "$ROOT" --nodeps `+args)
	fixture.Stop(c.t, err != nil, "rpm %s: %v\n%s", args, err, out)
	return out
}

// put copies a package to the chroot's /root.
func (c *chroot) put(path string) string {
	c.t.Helper()
	run(c.t, "cp", path, filepath.Join(c.root, "root"))
	return "/root/" + filepath.Base(path)
}

func (c *chroot) write(path, text string) {
	c.t.Helper()
	fixture.Must(c.t, os.WriteFile(filepath.Join(c.root, path), []byte(text), 0o644))
}

// asked returns the changes that systemctl was asked to make since the last call.
func (c *chroot) asked() string {
	c.t.Helper()
	path := filepath.Join(c.root, "run/asked")
	text, _ := os.ReadFile(path) // no file: no requests
	os.Remove(path)
	var changes []string
	for line := range strings.Lines(string(text)) {
		words := slices.DeleteFunc(strings.Fields(line), func(word string) bool { return strings.HasPrefix(word, "-") })
		if !slices.Contains([]string{"is-enabled", "is-active"}, words[0]) {
			changes = append(changes, strings.Join(words, " "))
		}
	}
	return strings.Join(changes, "; ")
}

// answers waits until the agent serves readings, and returns its version.
func (c *chroot) answers() string {
	c.t.Helper()
	out, err := c.command(false, `timeout 120 sh -c 'until
			curl -fs -o /tmp/page localhost:9836/metrics && grep -q "^nvgpu_up{.*} 1" /tmp/page
		do sleep .02; done'
		sed -n 's/^gpusteward_build_info{.*[{,]version="\([^"]*\)".*/\1/p' /tmp/page; rm /tmp/page`)
	if err != nil {
		c.t.Fatalf("the agent does not serve: %v\n%s\n%s", err, out, c.run("cat /run/gpusteward.service.log || :"))
	}
	return strings.TrimSpace(out)
}

// process returns the agent's PID and user, or "" if it does not run.
func (c *chroot) process() string {
	c.t.Helper()
	return strings.TrimSpace(c.run(`p=$(cat /run/gpusteward.service.pid) && [ -e /proc/$p/exe ] &&
		echo $p $(stat -c %U /proc/$p) || :`))
}

// files lists all files, except for volatile ones and those of dpkg and this test.
func (c *chroot) files() []string {
	c.t.Helper()
	passing := regexp.MustCompile(`^/(dev|proc|run/(asked|gpusteward.*\.service\.(log|pid))|root/.*|` +
		`var/lib/dpkg/.*|var/log/.*|var/cache/.*|var/lib/apt/.*|etc/(\.pwd\.lock|g?shadow-)|tmp/.*)$`)
	var all []string
	err := filepath.WalkDir(c.root, func(path string, e fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, c.root)
		switch {
		case err != nil:
			return err
		case passing.MatchString(name):
			if e.IsDir() && (name == "/dev" || name == "/proc") {
				return fs.SkipDir
			}
		default:
			all = append(all, name)
		}
		return nil
	})
	fixture.Must(c.t, err)
	return all
}

// left returns the files that were added and removed since before.
func (c *chroot) left(before []string) string {
	c.t.Helper()
	now := c.files()
	var diff []string
	for _, name := range now {
		if !slices.Contains(before, name) {
			diff = append(diff, "+"+name)
		}
	}
	for _, name := range before {
		if !slices.Contains(now, name) {
			diff = append(diff, "-"+name)
		}
	}
	return strings.Join(diff, " ")
}

// old builds packages of a version that is older than any other.
var old = sync.OnceValues(func() (built, error) {
	const version, arch = "0.0.0~git1", "amd64"
	dir, err := build(version, arch)
	return in(dir, version, arch), err
})

const (
	edited = "collectors: {per_link: true}\n"
	// refused has a key of old versions.
	refused = "enforcer: {tenants: [{name: a, weight: 3}]}\n"
	units   = "gpusteward.service gpusteward.socket gpusteward-broker.service gpusteward-broker.socket"
)

func TestDeb(t *testing.T) {
	t.Parallel()
	c := newChroot(t)
	now := shipped(t, "amd64")
	before := fixture.Value(old())(t)
	deb, oldDeb := c.put(now.deb), c.put(before.deb)
	files := c.files()

	// After the installation the agent runs, as its unit's user.
	start := time.Now()
	c.run("dpkg -i " + deb)
	installed := time.Since(start)
	version := c.answers()
	t.Logf("from dpkg -i to the first scrape: %.1f s, including %.1f s of dpkg", time.Since(start).Seconds(),
		installed.Seconds())
	fixture.Equal(t, version, now.version, "the version that runs is")
	user := c.process()
	fixture.If(t, !strings.HasSuffix(user, " gpusteward"), "the agent has PID and user %q", user)
	fixture.Equal(t, c.asked(), "preset gpusteward.service; daemon-reload; restart gpusteward.service",
		"systemctl was asked")
	out := c.run("gpusteward config check /etc/gpusteward/gpusteward.yml; ldconfig -p | grep gpusteward || :")
	fixture.If(t, out != "/etc/gpusteward/gpusteward.yml is good.\n", "%v", out)

	// A purge leaves only the user. It removes the state and the operator's files, too.
	c.run("systemctl enable gpusteward-broker.socket; touch /var/lib/gpusteward/state " +
		"/etc/gpusteward/web.yml /etc/gpusteward/tenants.d/a.yml; dpkg --purge gpusteward")
	fixture.Equal(t, c.asked(), "enable gpusteward-broker.socket; stop "+units+"; daemon-reload; daemon-reload",
		"systemctl was asked")
	if left := c.left(files); left != "" || c.process() != "" {
		t.Errorf("the package leaves %s, and the process %q", left, c.process())
	}
	c.run("getent passwd gpusteward")

	// An upgrade keeps edited files and starts the new version.
	c.run("dpkg -i " + oldDeb)
	fixture.Equal(t, c.answers(), before.version, "the version that runs is")
	c.write("etc/gpusteward/gpusteward.yml", edited)
	c.write("etc/default/gpusteward", "GPUSTEWARD_OPTS=--log.level=debug\n")
	c.asked()
	c.run("dpkg -i " + deb)
	if got, asked := c.answers(), c.asked(); got != now.version ||
		asked != "daemon-reload; restart gpusteward.service" {
		t.Errorf("version %s runs, want %s; systemctl was asked %q", got, now.version, asked)
	}
	fixture.Equal(t, read(t, filepath.Join(c.root, "etc/gpusteward/gpusteward.yml")), edited,
		"the configuration is now")
	line := c.run("tr '\\0' ' ' </proc/$(cat /run/gpusteward.service.pid)/cmdline")
	fixture.Equal(t, line, "/usr/bin/gpusteward --role=observe --log.level=debug --demo ", "the command line is")

	// The new version refuses the configuration: the old one continues, dpkg succeeds, and the
	// message names the error and commands that work.
	c.run("dpkg -i --force-downgrade " + oldDeb)
	c.answers()
	was := c.process()
	c.write("etc/gpusteward/gpusteward.yml", refused)
	c.asked()
	said := c.run("dpkg -i " + deb)
	c.refused(said, before.version, was)
	c.write("etc/gpusteward/gpusteward.yml", edited)
	c.run(said[strings.LastIndex(said, "  gpusteward config check"):])
	fixture.Equal(t, c.answers(), now.version, "the version that runs is")

	// An upgrade does not start a disabled unit.
	c.run("systemctl disable --now gpusteward; dpkg -i " + deb)
	fixture.Equal(t, c.process(), "", "an upgrade starts a disabled unit")
	c.run("systemctl enable --now gpusteward")
	c.answers()

	// Removal keeps the configuration, and a purge removes it.
	c.run("dpkg --remove gpusteward")
	if left := c.left(files); !strings.Contains(left, "+/etc/gpusteward/gpusteward.yml") ||
		strings.Contains(left, "/run/gpusteward") || c.process() != "" {
		t.Errorf("removal leaves %s, and the process %q", left, c.process())
	}
	c.run("dpkg --purge gpusteward")
	fixture.Equal(t, c.left(files), "", "the package leaves")

	// Without systemd, the package only creates the link of the enabled unit.
	c.run("rmdir /run/systemd/system")
	c.asked()
	c.run("dpkg -i " + deb + " && test -e /etc/systemd/system/multi-user.target.wants/gpusteward.service && " +
		"dpkg --purge gpusteward && mkdir /run/systemd/system")
	if left, asked := c.left(files), c.asked(); left != "" || asked != "preset gpusteward.service" {
		t.Errorf("without systemd the package leaves %s, systemctl was asked %q", left, asked)
	}
}

// refused checks that a version continues as the same process, and the message about it.
func (c *chroot) refused(said, version, process string) {
	c.t.Helper()
	if got, p := c.answers(), c.process(); got != version || p != process {
		c.t.Errorf("version %s runs as %s, want %s as %s", got, p, version, process)
	}
	fixture.Equal(c.t, c.asked(), "daemon-reload", "systemctl was asked")
	for _, want := range []string{
		"/etc/gpusteward/gpusteward.yml:1: ", `"weight"`, "NOT restarted", "systemctl restart gpusteward.service",
	} {
		fixture.Contains(c.t, said, want, "the output")
	}
}

func TestRPM(t *testing.T) {
	t.Parallel()
	c := newChroot(t)
	now := shipped(t, "amd64")
	before := fixture.Value(old())(t)
	files := c.files()

	c.rpm("--install " + before.rpm)
	fixture.Equal(t, c.answers(), before.version, "the version that runs is")
	fixture.Equal(t, c.asked(), "preset "+units+"; daemon-reload; restart gpusteward.service", "systemctl was asked")
	user := c.process()
	fixture.If(t, !strings.HasSuffix(user, " gpusteward"), "the agent has PID and user %q", user)
	c.write("etc/gpusteward/gpusteward.yml", edited)
	c.rpm("--upgrade " + now.rpm)
	if got, asked := c.answers(), c.asked(); got != now.version ||
		asked != "daemon-reload; restart gpusteward.service; daemon-reload" {
		t.Errorf("version %s runs, want %s; systemctl was asked %q", got, now.version, asked)
	}
	fixture.Equal(t, read(t, filepath.Join(c.root, "etc/gpusteward/gpusteward.yml")), edited,
		"the configuration is now")

	c.rpm("--upgrade --oldpackage " + before.rpm)
	c.answers()
	was := c.process()
	c.write("etc/gpusteward/gpusteward.yml", refused)
	c.asked()
	said := c.rpm("--upgrade " + now.rpm)
	fixture.If(t, !strings.HasSuffix(c.asked(), "daemon-reload; daemon-reload"), "the agent was restarted")
	c.run("echo daemon-reload >/run/asked")
	c.refused(said, before.version, was)

	c.rpm("--erase gpusteward")
	if asked := c.asked(); asked != "stop "+units+"; disable "+units+"; daemon-reload" || c.process() != "" {
		t.Errorf("systemctl was asked %q, process %q", asked, c.process())
	}
	// Files of rpm, and directories that an rpm-based system has.
	theirs := regexp.MustCompile(`^\+(/var/lib/rpm.*|/usr/lib/(sysusers\.d|systemd/system-preset)|` +
		`/usr/share/(licenses|zsh/site-functions))$`)
	left := slices.DeleteFunc(strings.Fields(c.left(files)), theirs.MatchString)
	want := []string{"+/etc/gpusteward", "+/etc/gpusteward/gpusteward.yml.rpmsave", "+/var/lib/gpusteward"}
	fixture.EqualSlices(t, left, want, "erasing leaves")
}

// TestInstallPage runs the ```sh blocks of docs/install.md on a Debian, in order, in the directory of the package.
func TestInstallPage(t *testing.T) {
	t.Parallel()
	c := newChroot(t)
	c.put(shipped(t, "amd64").deb)
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(read(t, "../../docs/install.md"), -1)
	fixture.Stop(t, len(blocks) < 5, "docs/install.md has %d blocks of commands", len(blocks))
	for i, block := range blocks {
		out, err := c.command(false, "cd /root\n"+block[1])
		t.Logf("%s%s", block[1], out)
		if err != nil {
			t.Fatalf("block %d of docs/install.md: %v\n%s%s\n%s",
				i+1, err, block[1], out, c.run("cat /run/gpusteward*.service.log || :"))
		}
	}
	log := c.run("cat /run/gpusteward-broker.service.log")
	fixture.If(t, !strings.Contains(log, "gpusteward enforces") || strings.Contains(log, `"level":"error"`),
		"the broker's log is\n%s", log)
	fixture.Equal(t, c.process(), "", "at the end of the page the agent still runs")
}
