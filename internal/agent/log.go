package agent

import (
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
)

// newLogger returns a logger that writes with zerolog.
func newLogger(w io.Writer, level, format string) *slog.Logger {
	if format == "auto" && isTerminal(w) {
		format = "console"
	}
	if format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: w != io.Writer(os.Stderr)}
	}
	least, err := zerolog.ParseLevel(level)
	if err != nil {
		least = zerolog.InfoLevel
	}
	return slog.New(zerolog.NewSlogHandler(zerolog.New(w).Level(least).With().Timestamp().Logger()))
}

// isTerminal reports whether somebody reads w as it is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
