/* fails.c: a test that fails, to prove that the harness and the runner report it (WILL_FAIL in tests/scripts.cmake). */
#include "check.h"

int main(void)
{
    CHECK(1 + 1 == 2);
    CHECK(1 + 1 == 3);
    return check_done();
}
