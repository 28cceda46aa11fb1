package host

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ReadTrusted returns the text of a file that only root, or the user of this
// process, can write: other users cannot forge it. It never blocks, and reads
// no more than most bytes. A longer file is an error, and so is one that is not
// a regular file.
func ReadTrusted(path string, most int64) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s: it is not a regular file", path)
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s: it belongs to user %d, and only root's files are trusted: chown root it", path,
			stat.Uid)
	case stat.Mode&0o022 != 0:
		return nil, fmt.Errorf("%s: users other than its owner can write it, so it is not trusted: chmod go-w it", path)
	}
	return readAtMost(file, most)
}

// ReadFile returns the text of a file; a file longer than most bytes is an
// error.
func ReadFile(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return readAtMost(file, most)
}

func readAtMost(file *os.File, most int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s: it has more than %d bytes", file.Name(), most)
	}
	return text, err
}
