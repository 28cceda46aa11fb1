// Package agent is the program: its commands, its roles, and the wiring of all parts. No other
// package names them all.
//
// Main parses the command line (commands.go). Without a command, serve (role.go) loads the
// configuration, assembles the role and runs its tasks concurrently; a task that fails ends
// all of them. A role is an assembly: observer.go reads, judges and serves, and in the role
// all enforces as well; enforcer.go only enforces; fleet.go simulates many hosts in one process,
// whose readers share threads and read every 10 s. Both kinds of hosts are an observedHost:
// collectors, judgement and server.
//
// --role=enforce is the broker and the enforcer, with CAP_DAC_OVERRIDE, CAP_KILL,
// CAP_SYS_PTRACE and CAP_SYS_RESOURCE; the process executes itself again once it has dropped
// the other capabilities (capabilities.go). --role=observe has everything else and no
// privilege, and asks the broker's socket for the enforcer's data. The observer is the owner
// of agent/ in --runtime.dir, and only it and root get these answers.
//
// On SIGTERM tasks have 1.2 s to end. The program waits longer only until the enforcer has
// resumed what it had stopped. On SIGHUP the assembly receives the new configuration, and each
// subsystem takes its part. renew.go replaces the process by exec after a driver upgrade: the
// PID, the arguments and the activated sockets stay.
//
// Invariants:
//
//   - Subsystems do not know each other: this package hands them functions and channels.
//   - A bad configuration changes nothing: the former one stays in force.
//   - Nothing that a client, a disk or an Alertmanager does keeps the program from ending.
//   - A reader that hangs outside of the driver ends the pings to systemd (supervise.go).
//
// Begin with serve in role.go, observer.go and observedhost.go.
package agent
