package stack

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// fileSystems are the file systems that are read: those on local disks and in memory, and
// network file systems, which only root can mount. A user's program can serve any other,
// such as FUSE, and keep its readers waiting for ever.
var fileSystems = strings.Fields(`
	bcachefs btrfs devtmpfs erofs exfat ext2 ext3 ext4 f2fs hugetlbfs iso9660 jfs nilfs2 ntfs3 overlay ramfs reiserfs
	rootfs squashfs tmpfs udf vfat xfs zfs
	9p afs beegfs ceph cifs gpfs lustre nfs nfs4 orangefs smb3 virtiofs wekafs`)

// mounts are the file systems that a process may have mapped files of.
type mounts struct {
	types map[string]string // by device, as /proc/PID/maps has it
	read  map[string]bool   // the devices of those that are read
	on    []mount           // where the process has them
}

// A mount is where the process sees a file system.
type mount struct{ device, point string }

// mountsOf reads the mounts of the process in dir. It trusts them only if the process is
// in this user namespace: in a namespace of their own, users can mount a file system of a
// known type over one of FUSE.
func mountsOf(procfs, dir string) *mounts {
	m := &mounts{types: map[string]string{}, read: map[string]bool{}}
	self := filepath.Join(procfs, "self")
	a, _ := os.Readlink(filepath.Join(self, "ns/user"))
	b, _ := os.Readlink(filepath.Join(dir, "ns/user"))
	m.on = m.add(dir, a != "" && a == b)
	m.add(self, true)
	m.add(filepath.Join(procfs, "1"), true)
	return m
}

func (m *mounts) add(dir string, trusted bool) (on []mount) {
	f, err := os.Open(filepath.Join(dir, "mountinfo"))
	if err != nil {
		return nil
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, maxMaps))
	for lines.Scan() {
		one, typ, ok := parseMount(lines.Text())
		if !ok {
			continue
		}
		on = append(on, one)
		m.types[one.device] = typ
		if trusted && slices.Contains(fileSystems, typ) {
			m.read[one.device] = true
		}
	}
	return on
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// parseMount reads a line of /proc/PID/mountinfo.
func parseMount(line string) (m mount, typ string, ok bool) {
	what, of, found := strings.Cut(line, " - ")
	f := strings.Fields(what)
	typ, _, _ = strings.Cut(of, " ")
	var major, minor uint
	if !found || len(f) < 5 {
		return m, "", false
	}
	if n, _ := fmt.Sscanf(f[2], "%d:%d", &major, &minor); n != 2 {
		return m, "", false
	}
	return mount{device(major, minor), unescape.Replace(f[4])}, typ, true
}

// device is a device as /proc/PID/maps has it.
func device(major, minor uint) string { return fmt.Sprintf("%02x:%02x", major, minor) }

// refuses returns why a mapped file is not read; nil: it is read.
func (m *mounts) refuses(of mapping) error {
	if m.read[of.device] {
		return nil
	}
	return notRead(m.types[of.device])
}

// refusesPath returns why a file is not opened by its path: a file system on the way is
// not read.
func (m *mounts) refusesPath(path string) error {
	for _, one := range m.on {
		if (one.point == "/" || path == one.point || strings.HasPrefix(path, one.point+"/")) && !m.read[one.device] {
			return notRead(m.types[one.device])
		}
	}
	return nil
}

func notRead(typ string) error {
	if typ == "" {
		typ = "unknown"
	}
	return fmt.Errorf("its file system (%s) is not read, as a program may serve it that does not answer", clean(typ))
}
