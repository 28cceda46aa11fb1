package agent

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/internal/input"
)

// introduction says what a bare gpusteward starts, to somebody who may not know.
func introduction(f flags, uid int) string {
	if f.demoGiven || f.configGiven {
		return ""
	}
	text := "gpusteward: this is the agent. It reads the GPUs of this host and serves their metrics and a live page at " +
		strings.Join(*f.web.WebListenAddresses, ", ") + ", until Ctrl-C.\n"
	if _, err := os.Stat(f.config); err != nil {
		text += "  Without a configuration (" + f.config + ") it only observes: it changes nothing.\n"
	}
	if uid != 0 {
		text += "  Without root it may not see the kernel's log and the owners of processes, and may keep no state.\n"
	}
	return text + "  gpusteward --demo simulates a host, gpusteward status shows a running agent, and gpusteward --help\n" +
		"  lists all commands.\n"
}

// unknownWord matches the parser's errors about a word that it does not know.
var unknownWord = regexp.MustCompile(`^(unexpected|expected command but got|unknown long flag) ['"]?(.*?)['"]?$`)

// misspelt returns err, which is about a word, with what may be meant. selected is
// the command that the parser has chosen; nil: none.
func misspelt(app *kingpin.ApplicationModel, selected *kingpin.CmdClause, args []string, what, word string, err error) error {
	commands, flags := app.Commands, app.Flags
	switch {
	case selected != nil && slices.Contains(args, strings.Fields(selected.FullCommand())[0]):
		m := selected.Model()
		commands, flags = m.Commands, slices.Concat(flags, m.Flags)
		if what == "unexpected" {
			return err // an argument too many
		}
	default:
		for _, c := range commands {
			if c.Default {
				flags = slices.Concat(flags, c.Flags)
			}
		}
	}
	var known []string
	if what == "unknown long flag" {
		for _, f := range flags {
			if !f.Hidden {
				known = append(known, "--"+f.Name)
			}
		}
		return fmt.Errorf("there is no flag %q here%s", word, input.Instead(word, known))
	}
	for _, c := range commands {
		if !c.Hidden && c.Name != "help" {
			known = append(known, c.Name)
		}
	}
	return fmt.Errorf("there is no command %q%s", word, input.Instead(word, known))
}

// usageError returns err, an error of the command line, with what the parser does
// not tell: the flag or the argument whose value caused it, or what may be meant.
func usageError(app *kingpin.Application, args []string, err error) error {
	c, _ := app.ParseContext(args)
	if c == nil {
		return err
	}
	if m := unknownWord.FindStringSubmatch(err.Error()); m != nil {
		return misspelt(app.Model(), c.SelectedCommand, args, m[1], m[2], err)
	}
	for _, e := range c.Elements {
		var name string
		var value kingpin.Value
		switch clause := e.Clause.(type) {
		case *kingpin.FlagClause:
			name, value = "--"+clause.Model().Name, clause.Model().Value
		case *kingpin.ArgClause:
			name, value = clause.Model().Name, clause.Model().Value
		}
		if value == nil || e.Value == nil {
			continue
		}
		if bad := value.Set(*e.Value); bad == nil || bad.Error() != err.Error() {
			continue
		}
		if errors.As(err, new(*strconv.NumError)) {
			return fmt.Errorf("%s: %q is not a number that fits", name, *e.Value)
		}
		return fmt.Errorf("%s: %w", name, err)
	}
	return err
}
