package enforcer_test

import ()
